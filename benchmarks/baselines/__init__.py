"""What this package is measured against: the same work, done in the ways people do it today."""
