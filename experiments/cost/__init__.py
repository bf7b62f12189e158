"""Memory and time of a decoder by length and kind of attention, predicted and measured."""
