"""`exporter`. Its first act is to mind Ctrl-C: the imports of the command line take a while."""

from exporter.cli.signals import end_quietly_when_interrupted


def main() -> None:
    end_quietly_when_interrupted()
    from exporter.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
