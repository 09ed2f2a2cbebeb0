"""How a setting is declared, parsed and explained; each system keeps its own table of names."""
