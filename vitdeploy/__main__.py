"""`python -m vitdeploy`."""

from vitdeploy.cli import main

if __name__ == "__main__":
    main()
