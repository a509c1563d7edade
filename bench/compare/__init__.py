"""How often comparisons of equal runs raise an alarm, and how small a change they find."""
