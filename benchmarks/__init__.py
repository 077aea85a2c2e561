"""Programs that measure, in folders by what they measure; README.md lists them."""
