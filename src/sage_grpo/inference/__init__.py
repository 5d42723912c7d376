"""A trained model outside its run: opened again, sampled, exported."""
