"""What the archive remembers, asked by a person and used by runs: rankings, lineages, effects, lessons, care."""
