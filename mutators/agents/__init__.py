"""Language models as mutation and crossover operators: providers, roles, prompts, and the swarm that runs them."""
