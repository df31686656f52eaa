"""Entry point of the exporter; it handles SIGINT before the slow imports of the command line."""

from exporter.cli.signals import exit_on_sigint


def main() -> None:
    exit_on_sigint()
    from exporter.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
