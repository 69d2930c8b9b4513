"""Messages of the wire."""
