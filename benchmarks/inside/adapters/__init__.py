"""One module for each contender, named as in the catalogue; its class is `Adapter`."""
