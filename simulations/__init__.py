"""The Flower App of this repository: private federated training, simulated."""
