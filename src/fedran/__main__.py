"""``python -m fedran`` is ``fedran``."""

from fedran.cli.main import main

if __name__ == "__main__":
    main()
