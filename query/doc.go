// Package query turns a declared query into SQL for its database, a matcher in memory with the same semantics, and keys for an index over predicates.
//
// A [Definition] is compiled once ([Compile]). An input from a client is made canonical ([Query.Input]), which also says which entry it shares, and is
// bound to the query ([Query.Bind]). A [Bound] then gives SQL ([Bound.SQL]), decides for a row ([Bound.Match]) and says by which values a change can reach it ([Bound.Access]).
//
// # The subset of SQL
//
//	expression = expression OR expression | expression AND expression | NOT expression | ( expression ) | test
//	test       = operand (= | <> | != | < | <= | > | >=) operand
//	           | operand [NOT] BETWEEN operand AND operand
//	           | operand [NOT] IN ( operand, … ) | column [NOT] IN $list | column = ANY ($list)
//	           | column [NOT] (LIKE | ILIKE) pattern [ESCAPE 'c']
//	           | operand IS [NOT] NULL
//	           | operand IS [NOT] DISTINCT FROM operand
//	           | boolean column | boolean $parameter | TRUE | FALSE | NULL
//	operand    = column | "column" | $parameter | $actor.attribute | number | 'text' | TRUE | FALSE | NULL
//	           | (DATE | TIMESTAMP | TIMESTAMPTZ | UUID | NUMERIC | INT | BIGINT | FLOAT8 | TEXT | BOOLEAN | BYTEA) 'text' | 'text'::type
//
// Each comparison has a column on one side at least. Bare names are in lower case for PostgreSQL and match without regard to case for SQLite. There are
// no functions, no arithmetic, no comments, no subqueries. Values never become SQL text: literals and parameters are arguments of the statement.
// The text is at most 64 KiB with 64 levels and 1,024 comparisons and values; errors say the position.
//
// # Semantics
//
// The matcher gives true, false or unknown, exactly as the database of the table does; random predicates over random rows are compared with both databases in
// the tests. A predicate is brought to negation normal form, which three-valued logic allows: NOT (a < b) is a >= b, also for NULL.
//
// PostgreSQL: a literal or parameter has the type of the column beside it, as an untyped literal has in the database; a number beside an integer that is not one is a decimal; beside
// real a number alone is double precision, and in a list of several it is real. NaN equals itself and is above all numbers. Enum labels have the order
// of their declaration. char(n) ignores trailing spaces.
//
// SQLite: values have storage classes and columns have affinity, which is applied to text beside a column of numbers; numbers stand before texts, texts before
// blobs. LIKE ignores the case of ASCII letters (the database's default, which must not be changed), ends text at a NUL byte, has no escape character of its own, and matches no
// blob. A column of numbers alone is true when it is not zero. TRUE and FALSE are 1 and 0.
//
// # What is refused
//
// Compile refuses what cannot mean one thing: unknown columns, literals that are no value of the column's type, timestamps with zone written without their
// zone and the reverse, words such as now, a column of text beside a number, typed literals and ILIKE in SQLite, IS [NOT] DISTINCT FROM TRUE in
// SQLite (there it is another test), tables without a primary key, parameters that are declared and not used.
//
// # Classes
//
// A query that the matcher decides alone is [Routed], with a limit [Windowed]. What follows makes it [Rerun]; the reason is in [Query.Reason]. The index
// keys stay sound, and Match becomes "may match": leaves that cannot be decided are taken for true.
//
//   - order or < <= > >= BETWEEN on text under a collation of a locale (equality, IN and LIKE are exact); any comparison under a custom or
//     nondeterministic one. COLLATE "C" (BINARY in SQLite) in the order makes the order exact; ties are always broken by bytes.
//   - ILIKE under any collation but C, as case is the locale's; LIKE on char(n); LIKE in SQLite on a column without TEXT affinity.
//   - comparisons of json, arrays, and types that are not understood (interval, inet, ranges, domains over them); IS NULL is exact.
//   - two columns of which one is converted: float with int or decimal, date with timestamp, timestamps with and without zone, texts
//     under different collations, columns of different affinity in SQLite.
//
// One thing is out of reach in both directions: text that is not UTF-8, which only SQLite can store, in LIKE with multibyte patterns.
//
// # Index keys
//
// The predicate is expanded to at most 32 conjunctions. Each gives one [Access]: a tuple of up to three columns with at most 64 combinations of values (=, IN, IS NULL, boolean
// columns) and a range on one more column (comparisons, longer lists, the prefix of a LIKE), either of them alone, or nothing, which means a scan. A row that matches meets
// at least one of them. Where that one says everything that the predicate says ([Access.Whole]), a row that meets it matches, and Match need not be asked.
//
// # Bounds
//
// An input is at most 16 KiB and 64 parameters; a text 4,096 bytes and a list 64 values unless declared (up to 16 KiB and 1,000). A limit is at most 10,000.
//
// Everything here is pure and immutable after it was made, and may be used concurrently.
package query
