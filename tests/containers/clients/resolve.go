// resolve NAME...: what Go's own resolver says, a line for each name.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"
)

func main() {
	resolver := &net.Resolver{PreferGo: true}
	for _, name := range os.Args[1:] {
		found, err := resolver.LookupHost(context.Background(), name)
		var failed *net.DNSError
		if errors.As(err, &failed) && failed.IsNotFound {
			fmt.Println(name, "no-name")
			continue
		} else if err != nil {
			fmt.Println(name, "again")
			continue
		}
		sort.Strings(found)
		fmt.Println(name, strings.Join(found, " "))
	}
}
