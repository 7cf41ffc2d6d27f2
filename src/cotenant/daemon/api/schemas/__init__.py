"""The shapes of requests and answers: mypy holds the code to them, and the OpenAPI document is made from them."""
