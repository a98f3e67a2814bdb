package redisstore

// InboxKey and ValueKey are the keys in Redis.
func InboxKey(s *Store, handler, key string) string { return s.inboxKey(handler, key) }

// ValueKey is the key of a value.
func ValueKey(s *Store, name string) string { return s.valueKey(name) }
