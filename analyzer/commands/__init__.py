"""What the analyzer is asked on the command line, a command a file."""
