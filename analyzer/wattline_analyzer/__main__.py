"""Entry point of the analyzer; it names missing packages before the command line imports them."""

from wattline.command_line import exit_if_not_installed


def main(program: str = "analyzer") -> None:
    exit_if_not_installed("analyzer")
    from wattline_analyzer.cli import main as run_command

    run_command(program)


if __name__ == "__main__":
    main()
