"""Plans: contracts over a record of verbs, composed and checked before the first step."""
