"""What is known of a reward, of a trainer's arguments, of a key: read from sources and the schema, as values."""
