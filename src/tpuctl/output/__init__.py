"""How results and events are shown: to a person, to a pipe, to a program."""
