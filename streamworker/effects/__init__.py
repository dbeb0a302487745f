"""Effects that happen once although a handler may run twice. Imported when a handler first asks for one."""
