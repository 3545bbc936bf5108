"""Can a number be believed? Doctor and zoo, certificates and their replays, hold-outs."""
