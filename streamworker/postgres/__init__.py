"""The durable record in Postgres. Imported only by those who ask for it: asyncpg is an extra."""
