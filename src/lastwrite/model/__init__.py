"""Values that the layers share; they contain no logic beyond their own fields."""
