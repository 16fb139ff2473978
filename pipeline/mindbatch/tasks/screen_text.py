"""Text from data and files as a terminal may show it."""


def printable(text: str) -> str:
    """`text` on one line; characters that would act on the terminal, or hide, are written as escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
