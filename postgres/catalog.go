package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

// description is what the catalog says of a table.
type description struct {
	OID         uint32
	Schema      string
	Name        string
	Kind        string // relkind
	Persistence string
	Identity    string // d, n, f or i
	Partition   bool   // of another table
	Root        string // of a partition
	RowSecurity bool   // for this role
	Select      bool   // may be read
	Parent      bool   // has children by inheritance or partition
	Columns     []column
	Primary     []string // key columns, in order; null when there is none, or it is deferrable
	Index       []string // of the replica identity, the same
	Nodes       []node   // partitions on all levels
	Covered     bool     // by the publication
	Filtered    bool     // by a row filter or a column list
	Lacking     string   // the publication, when it leaves kinds of changes out
	ViaRoot     bool

	types map[uint32]pgType
}

type column struct {
	Name      string
	Type      uint32
	Mod       int32
	NotNull   bool
	Generated bool
	Collation row.Collation `json:"-"`

	Coll *collation
}

type collation struct {
	Provider      string
	Locale        string
	Deterministic bool
}

type node struct {
	OID      uint32
	Name     string
	Leaf     bool
	Identity string
	Created  bool // as a partition: it had no rows before it was one
	File     string
}

type pgType struct {
	OID     uint32
	Type    string // typtype
	Array   bool
	Base    uint32 // of a domain
	Elem    uint32
	NotNull bool
	Name    string
	Labels  []string
}

// catalog runs a query that sees what the stream has begun to deliver: a table is often changed in the transaction after the one that altered it, or in the same.
func (d *Database) catalog(ctx context.Context, sql string, args ...string) ([][]string, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		f, err := d.fence(ctx)
		if err != nil {
			return nil, err
		}
		if _, hidden := d.begun.hiddenFrom(f); !hidden {
			return d.query(ctx, sql, args...)
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// describe returns what the catalog says of tables, by a condition over c (pg_class) and n (pg_namespace) with parameters from $2 on.
func (d *Database) describe(ctx context.Context, condition string, args ...string) ([]*description, error) {
	namespace := ""
	if d.version >= 150000 {
		namespace = ` OR EXISTS (SELECT FROM pg_publication_namespace x, pub WHERE x.pnpubid = pub.oid AND x.pnnspid = c.relnamespace)`
	}
	key := func(which string) string {
		return `(SELECT json_agg(a.attname ORDER BY k.ord) FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (num, ord), pg_attribute a WHERE i.indrelid = c.oid AND i.` + which +
			` AND i.indisvalid AND i.indimmediate AND k.ord <= i.indnkeyatts AND a.attrelid = c.oid AND a.attnum = k.num)`
	}
	sql := `
WITH pub AS (SELECT oid, puballtables, pubviaroot, CASE WHEN NOT ` + publishesAll + ` THEN pubname END AS lacking FROM pg_publication WHERE pubname = $1),
db AS (SELECT to_jsonb(d) AS j FROM pg_database d WHERE datname = current_database())
SELECT json_build_object(
	'oid', c.oid::int8, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind, 'persistence', c.relpersistence, 'identity', c.relreplident,
	'partition', c.relispartition, 'root', CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::text END,
	'rowSecurity', row_security_active(c.oid), 'select', coalesce(has_table_privilege(c.oid, 'SELECT'), true), 'parent', EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid),
	'columns', (SELECT json_agg(json_build_object('name', a.attname, 'type', a.atttypid::int8, 'mod', a.atttypmod, 'notNull', a.attnotnull, 'generated', a.attgenerated <> '',
			'coll', CASE WHEN o.oid IS NOT NULL THEN json_build_object('deterministic', o.collisdeterministic,
				'provider', CASE o.collprovider WHEN 'd' THEN coalesce(db.j->>'datlocprovider', 'c') ELSE o.collprovider::text END,
				'locale', CASE o.collprovider WHEN 'd' THEN CASE coalesce(db.j->>'datlocprovider', 'c') WHEN 'c' THEN db.j->>'datcollate' ELSE db.j->>'datlocale' END
					WHEN 'c' THEN o.collcollate ELSE to_jsonb(o)->>'colllocale' END) END) ORDER BY a.attnum)
		FROM db, pg_attribute a LEFT JOIN pg_collation o ON o.oid = a.attcollation WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
	'primary', ` + key("indisprimary") + `, 'index', ` + key("indisreplident") + `,
	'nodes', CASE c.relkind WHEN 'p' THEN (SELECT json_agg(json_build_object('oid', t.relid::oid::int8, 'name', t.relid::text, 'leaf', t.isleaf, 'identity', l.relreplident, 'file', l.relfilenode::text,
			'created', a.xmin = i.xmin) ORDER BY t.relid::oid)
		FROM pg_partition_tree(c.oid) t, pg_class l, pg_attribute a, pg_inherits i
		WHERE t.level > 0 AND l.oid = t.relid AND i.inhrelid = t.relid AND a.attrelid = t.relid AND a.attnum = -1) END,
	'covered', EXISTS (SELECT FROM pub WHERE puballtables) OR EXISTS (SELECT FROM pg_publication_rel r, pub WHERE r.prpubid = pub.oid AND r.prrelid = c.oid)` + namespace + `,
	'filtered', EXISTS (SELECT FROM pg_publication_rel r, pub WHERE r.prpubid = pub.oid AND r.prrelid = c.oid AND coalesce(to_jsonb(r)->>'prqual', to_jsonb(r)->>'prattrs') IS NOT NULL),
	'lacking', (SELECT lacking FROM pub), 'viaRoot', coalesce((SELECT pubviaroot FROM pub), false))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE ` + condition
	rows, err := d.catalog(ctx, sql, append([]string{d.opts.Publication}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("postgres: catalog: %w", err)
	}
	var out []*description
	var oids []uint32
	for _, r := range rows {
		x := &description{}
		if err := json.Unmarshal([]byte(r[0]), x); err != nil {
			return nil, fmt.Errorf("postgres: catalog: %w", err)
		}
		for i := range x.Columns {
			c := &x.Columns[i]
			c.Collation = c.Coll.class()
			oids = append(oids, c.Type)
		}
		out = append(out, x)
	}
	types, err := d.types(ctx, oids)
	for _, x := range out {
		x.types = types
	}
	return out, err
}

// class is how values are compared under a collation; nil is none, as of numbers.
func (c *collation) class() row.Collation {
	switch {
	case c == nil:
		return row.C
	case !c.Deterministic:
		return row.Custom
	case c.Provider == "i":
		return row.Locale
	}
	switch strings.ToLower(c.Locale) {
	case "c", "posix":
		return row.C
	case "c.utf-8", "c.utf8":
		return row.CUTF8
	}
	return row.Locale
}

// types loads types, with what domains and arrays are made of.
func (d *Database) types(ctx context.Context, oids []uint32) (map[uint32]pgType, error) {
	rows, err := d.catalog(ctx, `
WITH RECURSIVE needed (oid) AS (
	SELECT DISTINCT unnest($1::oid[]) UNION SELECT x FROM needed JOIN pg_type p USING (oid), unnest(ARRAY[p.typbasetype, p.typelem]) x WHERE x <> 0)
SELECT json_build_object('oid', oid::int8, 'type', typtype, 'array', typcategory = 'A' AND typlen = -1 AND oid NOT IN (22, 30), 'base', typbasetype::int8, 'elem', typelem::int8, 'notNull', typnotnull,
	'name', format_type(oid, NULL), 'labels', (SELECT json_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum e WHERE e.enumtypid = p.oid))
FROM pg_type p JOIN needed USING (oid)`, oidArray(oids))
	if err != nil {
		return nil, fmt.Errorf("postgres: catalog: %w", err)
	}
	types := map[uint32]pgType{}
	for _, r := range rows {
		var t pgType
		if err := json.Unmarshal([]byte(r[0]), &t); err != nil {
			return nil, fmt.Errorf("postgres: catalog: %w", err)
		}
		types[t.OID] = t
	}
	return types, nil
}

func oidArray(oids []uint32) string {
	b := []byte{'{'}
	for i, oid := range oids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(oid), 10)
	}
	return string(append(b, '}'))
}

// typeOf makes a type from the catalog. What is not known is opaque.
func typeOf(types map[uint32]pgType, oid uint32, c row.Collation) row.Type {
	if t, ok := row.PostgresType(oid, c); ok {
		return t
	}
	t, ok := types[oid]
	switch {
	case !ok:
		return row.Type{Kind: row.Opaque}
	case t.Type == "d":
		return typeOf(types, t.Base, c)
	case t.Type == "e":
		return row.Type{Kind: row.Enum, Name: t.Name, Labels: t.Labels}
	case t.Array:
		elem := typeOf(types, t.Elem, c)
		return row.Type{Kind: row.Array, Name: t.Name, Elem: &elem}
	}
	return row.Type{Kind: row.Opaque, Name: t.Name}
}

func (x *description) name() row.Name { return row.Name{Schema: x.Schema, Table: x.Name} }

// key is what identifies a row for the stream: an UPDATE or DELETE always has it.
func (x *description) key() []string {
	if x.Identity == "i" {
		return x.Index
	}
	return x.Primary
}

// unfit says why the table cannot be followed, and what to do, or returns "".
func (x *description) unfit() string {
	q := quoteName(x.name())
	switch {
	case x.Partition:
		return "it is a partition: query its root " + x.Root
	case x.Kind != "r" && x.Kind != "p":
		return "only tables can be followed, and this is none"
	case x.Persistence != "p":
		return "temporary and unlogged tables are not in the log: ALTER TABLE " + q + " SET LOGGED"
	case x.Parent && x.Kind == "r":
		return "other tables inherit from it, and their rows come under other names"
	case x.RowSecurity:
		return "row security hides rows from this role, and would not in the stream: ALTER ROLE … BYPASSRLS"
	case !x.Select:
		return "this role may not read it: GRANT SELECT ON " + q + " TO …"
	case x.Identity == "n":
		return "its replica identity is nothing, so the server would refuse every UPDATE and DELETE: ALTER TABLE " + q + " REPLICA IDENTITY FULL"
	case len(x.key()) == 0:
		return "it has no primary key that is checked at once: ALTER TABLE " + q + " ADD PRIMARY KEY (…)"
	case x.Filtered:
		return "the publication filters its rows or columns: ALTER PUBLICATION … DROP TABLE " + q + ", and add it again without"
	case x.Lacking != "":
		return "the publication leaves kinds of changes out: " + publishAll(x.Lacking)
	}
	return ""
}

// partial returns the statements after which old rows are whole, or nil when they are.
func (x *description) partial() []string {
	var fix []string
	if x.Identity != "f" {
		fix = append(fix, "ALTER TABLE "+quoteName(x.name())+" REPLICA IDENTITY FULL")
	}
	for _, n := range x.Nodes {
		if n.Leaf && n.Identity != "f" {
			fix = append(fix, "ALTER TABLE "+n.Name+" REPLICA IDENTITY FULL")
		}
	}
	return fix
}

// layout makes the table as rows are delivered.
func (x *description) layout() *layout {
	t := &row.Table{Name: x.name()}
	l := &layout{table: t, columns: make([]relationColumn, len(x.Columns)), generated: make([]bool, len(x.Columns))}
	for i, c := range x.Columns {
		notNull := c.NotNull || x.types[c.Type].Type == "d" && x.types[c.Type].NotNull
		t.Columns = append(t.Columns, row.Column{Name: c.Name, Type: typeOf(x.types, c.Type, c.Collation), NotNull: notNull})
		l.columns[i] = relationColumn{name: c.Name, oid: c.Type, mod: c.Mod}
		l.generated[i] = c.Generated
	}
	for _, k := range x.key() {
		t.Key = append(t.Key, t.Column(k))
	}
	return l
}

// altered is what moved says when columns have changed.
const altered = "was altered"

// moved says what happened to a table that moves rows without the stream saying so, or returns "".
func moved(old, now *description) string {
	switch {
	case now == nil:
		return "was dropped"
	case old.name() != now.name():
		return "was renamed"
	case !now.Covered:
		return "was taken out of the publication"
	case now.unfit() != "":
		return "cannot be followed any more: " + now.unfit()
	case !old.layout().equal(now.layout()):
		return altered
	}
	before := map[uint32]node{}
	for _, n := range old.Nodes {
		before[n.OID] = n
	}
	for _, n := range now.Nodes {
		b, known := before[n.OID]
		delete(before, n.OID)
		switch {
		case !known && !n.Created:
			return "has a new partition " + n.Name + " that was a table"
		case known && n.Leaf && now.ViaRoot && b.File != n.File:
			return "has a partition " + n.Name + " that was truncated or rewritten"
		}
	}
	for _, n := range before {
		return "has lost its partition " + n.Name
	}
	return ""
}

// Table implements [feed.Database]. A table that the publication lacks is added to it, under a lock that writers of the table wait for; see cover.
func (d *Database) Table(ctx context.Context, name row.Name) (*row.Table, error) {
	for attempt := 0; ; attempt++ {
		all, err := d.describe(ctx, `n.nspname = $2 AND c.relname = $3`, name.Schema, name.Table)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%w: %s", feed.ErrNoTable, name)
		}
		x := all[0]
		if why := x.unfit(); why != "" {
			return nil, fmt.Errorf("%w: %s: %s", feed.ErrTableUnfit, name, why)
		}
		if x.Covered {
			d.warnPartial(x)
			return d.tables.put(x).table, nil
		}
		if attempt > 2 {
			return nil, fmt.Errorf("%w: %s is taken out of publication %s again and again", feed.ErrNoTable, name, d.opts.Publication)
		}
		if err := d.cover(ctx, x); err != nil {
			return nil, err
		}
	}
}

func (d *Database) warnPartial(x *description) {
	fix := x.partial()
	d.mu.Lock()
	warn := len(fix) > 0 && !d.warn[x.name()]
	d.warn[x.name()] = len(fix) > 0
	d.mu.Unlock()
	if warn {
		d.log.Warn("old rows of the table have only their key", "code", CodeReplicaIdentity, "table", x.name().String(), "fix", strings.Join(fix, "; "))
	}
}

// quote makes an identifier of a name.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func quoteName(n row.Name) string { return quote(n.Schema) + "." + quote(n.Table) }

// literal makes a string literal.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func indexOf(columns []relationColumn, name string) int {
	return slices.IndexFunc(columns, func(c relationColumn) bool { return c.name == name })
}
