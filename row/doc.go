// Package row is one row of a table as the database has it: types, values, comparison, order, keys, JSON and checksums.
//
// # Types
//
// A [Type] says what a column can hold and how its database compares it: [PostgresType] knows the built-in types of PostgreSQL by OID,
// [SQLiteType] reads a declaration of SQLite. In PostgreSQL every value of a column that is not NULL has the kind of the column. In SQLite a value has
// its own storage class whatever was declared, so a value is Int, Float, Text or Bytes there, and the kind of the column says only how it is shown
// to clients; a column whose declaration promises nothing has the kind [Dynamic].
//
// # Equality
//
// A [Value] is compared with == for identity: the same kind and the same text, so 1.0 and 1.00 are two values. What the database calls equal is
// [Compare] = 0, or == of [Canonical] values, which are what hash indexes and map keys are made of.
//
// # Order
//
// [Compare] is exact: int against float and decimals without rounding, NaN equal to itself and above every number, infinities of timestamps and dates at the
// ends, enum by the position of the label, bool false first, SQLite's storage classes in the order number, text, blob. Text is
// compared by its [Collation]. Only C and CUTF8 (bytes), NoCase and RTrim can be ordered here. Locale and Custom cannot: Compare takes bytes
// for them, which is a sound order for an index and not the order of the database; [NewOrder] refuses such a column with [ErrNotComparable], and so it
// does for json, arrays and opaque types.
//
// # JSON for clients
//
// [AppendJSON] writes null, true and false, and numbers for int and float; an int outside ±(2^53-1), a float that is not finite and every decimal is a
// string, as a JavaScript number would lose it. Text, enum and opaque are strings; a UUID is in lower case; bytes are base64. Timestamps are
// 2026-11-30T12:00:00.25 without zone and 2026-11-30T12:00:00.25Z with (always UTC), dates 2026-11-30, years before Christ end in " BC", and
// the ends are "infinity" and "-infinity". json stands as it is, arrays are arrays. In SQLite 0 and 1 in a column declared BOOL are false and true,
// text in a column declared JSON stands as it is when it is valid, and what its column does not promise is marked: a blob outside a Bytes column is
// {"$bytes": base64}, a text in an Int, Float or Bytes column {"$text": string}, and an int that needs a string outside an Int column {"$int": digits}.
//
// # Checksums
//
// [Checksum] of a row is computed over its canonical JSON (RFC 8785: keys sorted by UTF-16 code units, numbers as JavaScript writes them), so a
// client that has parsed the row has all it needs. It is FNV-1a of 64 bits over the UTF-8 bytes with the finalizer of MurmurHash3. The checksum of a
// set of rows is the sum modulo 2^64: it does not depend on order, and a row is added or taken out in constant time.
//
// # What it does not do
//
// Nothing here is locked or remembered: values, rows, types and tables are not changed after they were made, and may be shared. Text is taken to be
// UTF-8, also for SQLite: text columns of a database in UTF-16 have the collation Custom, because SQLite's BINARY then compares other bytes.
package row
