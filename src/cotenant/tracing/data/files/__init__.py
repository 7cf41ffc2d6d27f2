"""Files that a script asks for, lists, opens or unpacks and that are not on this machine."""
