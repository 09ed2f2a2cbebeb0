"""Values that all layers share, with no logic beyond their own fields."""
