"""Reading a topic as those read it who consume it: by offset, or as the table that its last writes make."""
