"""The handlers of the HTTP API, by what they are about; `routes` names the paths of each."""
