"""Reading model folders safely, and which bytes each rank needs."""
