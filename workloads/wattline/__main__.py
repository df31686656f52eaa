"""Entry point of `wattline`; it loads the program of the command only."""

from wattline.cli.main import main

if __name__ == "__main__":
    main()
