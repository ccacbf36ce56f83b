"""Tables of facts about TRL's trainers and our own options. The words of a configuration derive from them."""
