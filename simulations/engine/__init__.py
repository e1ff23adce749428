"""How a run is carried out: grids, cohorts on few nodes, optimisers, checks and measurements."""
