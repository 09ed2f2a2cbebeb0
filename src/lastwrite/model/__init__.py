"""Values that all layers share. They have no logic beyond their own fields."""
