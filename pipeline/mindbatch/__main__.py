"""`python -m mindbatch`."""

from mindbatch.cli import entry_point

if __name__ == "__main__":
    entry_point()
