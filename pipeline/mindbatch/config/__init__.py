"""Configuration: schemas, composition, validation, environment variables."""
