"""Client of the run API, which imports only the standard library."""
