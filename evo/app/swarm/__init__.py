"""Language models, coding agents and engineers as authors: in a run, by ask and tell, and on record."""
