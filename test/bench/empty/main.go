// Command empty does nothing: what the hook costs beyond it is the hook's own.
package main

func main() {}
