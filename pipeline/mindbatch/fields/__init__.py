"""Fields of schemas: their declaration, and the kinds of values that users may set."""
