package query_test

import (
	"fmt"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

func Example() {
	bigint, _ := row.PostgresType(20, row.C)
	text, _ := row.PostgresType(25, row.C)
	posts := &row.Table{Name: row.Name{Schema: "public", Table: "posts"}, Key: []int{0}, Columns: []row.Column{{Name: "id", Type: bigint}, {Name: "org", Type: bigint}, {Name: "title", Type: text}}}

	q, err := query.Compile(query.Definition{Name: "liveFeed", From: "posts", Where: "org = $org AND title LIKE 'a%'", Order: "title", Limit: 50}, posts)
	if err != nil {
		panic(err)
	}
	in, err := q.Input([]byte(`{"org": "7"}`), nil)
	if err != nil {
		panic(err)
	}
	b, err := q.Bind(in)
	if err != nil {
		panic(err)
	}
	fmt.Println(q.Class, in.Text)
	fmt.Println(b.SQL(query.Read{}).SQL)
	fmt.Println(b.Match(row.Row{row.IntValue(1), row.IntValue(7), row.TextValue("abc")}))
	fmt.Println(b.Match(row.Row{row.IntValue(1), row.IntValue(7), {}}))
	fmt.Println(b.Access()[0].Columns, b.Access()[0].Keys)
	// Output:
	// windowed {"org":7}
	// SELECT "id", "org", "title" FROM "public"."posts" WHERE ("org" = $1::bigint AND "title" LIKE $2::text) ORDER BY "title" NULLS LAST, "id" NULLS LAST LIMIT 50
	// true
	// unknown
	// [1] [[7]]
}
