// Package sql holds the database schema as numbered migrations.
package sql

import "embed"

// Migrations are the files migrations/NNNN_name.sql, applied in order; the number of the
// last one applied is the database's user_version.
//
//go:embed migrations/*.sql
var Migrations embed.FS
