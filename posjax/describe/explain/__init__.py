"""An explanation of an encoding as plain text, with numbers that the library computes."""
