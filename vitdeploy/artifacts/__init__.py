"""What stages write and read: whole files with a description beside or inside them."""
