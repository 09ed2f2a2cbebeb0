"""Values that the layers share; no behaviour beyond what a value can say of itself."""
