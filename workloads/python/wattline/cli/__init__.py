"""Console command `wattline`."""
