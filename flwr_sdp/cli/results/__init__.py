"""What came out: tables of results, summaries and figures."""
